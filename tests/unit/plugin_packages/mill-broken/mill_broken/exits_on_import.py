import sys

sys.exit("no licence found")
