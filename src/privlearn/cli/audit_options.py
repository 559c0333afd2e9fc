"""The options of `privlearn audit`."""

from privlearn.cli.option import Option, group_of

AUDIT = group_of(
    None,
    ("audit",),
    Option(
        "folder",
        "FOLDER",
        "a published model: attack a release of its plan, at the delta that it claims",
        flag=False,
        optional=True,
    ),
    Option("key", "PUBLIC", "with FOLDER: the publisher's public key, which must have signed it"),
    Option(
        "step",
        None,
        "one release of DP-SGD, many times, with the worst neighbours (default)",
        bool,
        False,
    ),
    Option("noise-multiplier", "S", "noise of the release", float),
    Option(
        "sampling",
        "NAME",
        "full (default), or poisson, partition, shuffle, fixed with --examples and --batch-size",
        str,
        "full",
    ),
    Option("examples", "N", "declared number of examples", int, 1000),
    Option("batch-size", "B", "expected examples in a batch", int),
    Option(
        "adjacency",
        "A",
        "add_remove or zero_out (default: the first that goes with the sampling)",
    ),
    Option(
        "code",
        "FILE.py",
        "attack your own code: a file that defines plan, and model, loss and data, or a "
        "function run(took_part)",
    ),
    Option(
        "canaries", "N", "with --code: train once, with N canaries of which half take part", int
    ),
    Option(
        "shadows",
        "N",
        "with --code: tell whom the model was trained on, by N models beside it (LiRA)",
        int,
    ),
    Option("delta", "D", "where epsilon is stated (default: 1e-5, or as FOLDER does)", float),
    Option(
        "trials",
        "T",
        "runs with the example, and as many without it (default: 5,000 to 40,000; 1,000 for run)",
        int,
    ),
    Option("confidence", "C", "(default: 0.99)", float, 0.99),
    Option("discrete", None, "noise on a grid", bool, False),
    Option("out", "FILE", "write the report into a .md or .json file, or draw it into a .png"),
)
