#!/usr/bin/env python3
"""The totals of a run of Java tests, in the form that scripts/test-totals.sh counts: "N passed, N skipped in S s". Skipped are tests of
what the file system does not claim to do; docs/hadoop.md says why. Usage: surefire-totals.py DIRECTORY"""

import glob
import os
import sys
import xml.etree.ElementTree as tree

tests = skipped = failed = 0
seconds = 0.0
for report in glob.glob(os.path.join(sys.argv[1], "*.xml")):
    suite = tree.parse(report).getroot()
    tests += int(suite.get("tests"))
    skipped += int(suite.get("skipped"))
    failed += int(suite.get("failures")) + int(suite.get("errors"))
    seconds += float(suite.get("time"))
parts = [f"{failed} failed"] * bool(failed) + [f"{tests - skipped - failed} passed"] + [f"{skipped} skipped"] * bool(skipped)
print(f"{', '.join(parts)} in {seconds:.2f}s")
sys.exit(failed > 0 or tests == skipped)
