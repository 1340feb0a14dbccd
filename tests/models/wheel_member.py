"""Write the one file of a wheel whose path matches a pattern to standard output: wheel_member.py WHEEL PATTERN."""

import fnmatch
import shutil
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = fnmatch.filter(wheel.namelist(), sys.argv[2])
    with wheel.open(name) as member:
        shutil.copyfileobj(member, sys.stdout.buffer)
