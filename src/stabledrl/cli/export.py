"""`stabledrl export`: from a training checkpoint to a model directory."""

from stabledrl.cli.parsing import call
from stabledrl.errors import UserInputError
from stabledrl.export import Layout, export_checkpoint


def export(
    checkpoint: str, output: str, layout: Layout = "native", overwrite: bool = False, base: str | None = None
) -> None:
    """Writes a checkpoint's policy as a model directory.

    Args:
        checkpoint: A .ckpt that training wrote, a file or a directory with a file per process.
        output: Directory to make; appears complete or not at all.
        layout: `native` for transformers' AutoModelForCausalLM, `source` for tools made for the model's family.
        overwrite: Replace an existing directory.
        base: Model that a checkpoint of adapters was trained on, where it is no longer where it was.
    """
    try:
        directory = export_checkpoint(checkpoint, output, layout=layout, overwrite=overwrite, base=base)
    except OSError as error:
        raise UserInputError(f"cannot write the output {output!r}: {error}") from error
    print(f"exported to {directory}")


def run_export(options: list[str]) -> int:
    """Runs the command."""
    call(export, options, "stabledrl export")
    return 0
