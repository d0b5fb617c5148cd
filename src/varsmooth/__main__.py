"""python -m varsmooth"""

from varsmooth.cli import main

if __name__ == "__main__":
    main()
