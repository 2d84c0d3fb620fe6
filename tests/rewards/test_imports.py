import subprocess
import sys


def test_rewards_import_no_torch() -> None:
    code = (
        "import sys, stabledrl.rewards; print([m for m in ('torch', 'lightning', 'transformers') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
