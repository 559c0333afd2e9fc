"""Plans of all kinds are read by a process that made none: what reads a kind imports the module
that it is in.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.publishing.checks_certificates import every_plan

#: Reads the plans that it is given, each in a fork of its own, so that none finds what another one
#: imported.
READER = """
import json, os, sys
from privlearn.publishing.certificate import read_plan
for text in json.load(sys.stdin):
    child = os.fork()
    if not child:
        read = json.dumps(read_plan(json.loads(text)).to_json()) == text
        os._exit(0 if read and "torch" not in sys.modules else 1)
    if os.waitpid(child, 0)[1]:
        sys.exit("not read: " + text)
"""


def test_a_process_that_made_no_plan_reads_every_kind() -> None:
    texts = [json.dumps(plan.to_json()) for plan in every_plan()]
    reader = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(texts),
        text=True,
        capture_output=True,
        check=False,
    )
    assert reader.returncode == 0, reader.stderr[-2000:]
