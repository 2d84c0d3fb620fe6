"""`stabledrl export`: from a training checkpoint to a Hugging Face model directory."""

from stabledrl.cli.parsing import call
from stabledrl.errors import UserInputError
from stabledrl.export import export_checkpoint


def export(checkpoint: str, output: str, overwrite: bool = False) -> None:
    """Writes a checkpoint's policy as a directory that transformers' AutoModelForCausalLM loads.

    Args:
        checkpoint: A .ckpt file that training wrote.
        output: Directory to make; appears complete or not at all.
        overwrite: Replace an existing directory.
    """
    try:
        directory = export_checkpoint(checkpoint, output, overwrite=overwrite)
    except OSError as error:
        raise UserInputError(f"cannot write the output {output!r}: {error}") from error
    print(f"exported to {directory}")


def run_export(options: list[str]) -> int:
    """Runs the command."""
    call(export, options, "stabledrl export")
    return 0
