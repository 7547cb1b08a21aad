"""What becomes of each script on several ranks.

Equal: with the weights and metrics of one process, within rounding. Statistically equal: finite,
the same on all ranks, and with a metric near that of one process. Refused: with a reason.
"""

from collections.abc import Iterator

TOLERANCE = 1e-5
"""How much values of equal scripts may differ, relative to the largest of each array."""
TOLERANCES = {
    "mixed_precision": 5e-3,  # of float16
    "k2_mixed_precision": 5e-3,
    "interleave": 0.2,  # several ranks keep an order, one process does not
}
OF_VARIANCES = 1e-3
"""For synchronized batch normalization, over 40 steps."""
# By the job that runs them. Those of "three" run on three ranks, others on two.
EQUAL = {
    "fit": (
        "sequential_fit",
        "functional_fit",
        "subclass_fit",
        "dataset_fit",
        "generator_fit",
        "class_weight",
        "sample_weight",
        "rnn_mask",
        "transformer",
        "text",
        "regularizers",
        "custom_metric",
        "custom_train_step",
        "train_on_batch",
        "changing_rate",
        "nan",
        "board",
    ),
    "loops": (
        "tape_eager",
        "tape_function",
        "loop_in_function",
        "python_flow",
        "embedding_sparse",
        "same_rows",
        "relative_positions",
        "unique_rows",
        "summed_loss",
        "clipping",
        "early_break",
        "two_losses",
        "contrastive",
        "siamese",
        "untracked_variable",
        "weight_tying",
        "adversarial",
        "diffusion",
        "seq2seq",
        "v1_wrapped",
        "v1_wrapped_monitored",
    ),
    "models": (
        "accumulation",
        "ema",
        "mixed_precision",
        "gan",
        "gan_fit",
        "gradient_penalty",
        "transfer",
        "extractor_map",
        "search",
        "interleave",
    ),
    "files": ("callbacks", "backup_restore", "save_load", "checkpoint_manager"),
    "habits": (
        "arguments",
        "eagerly",
        "exit_in_the_middle",
        "jit",
        "loader_processes",
        "notebook",
    ),
    "tf_keras": (
        "k2_fit",
        "k2_loop",
        "k2_train_step",
        "k2_callbacks",
        "k2_rnn_mask",
        "k2_mixed_precision",
        "mirrored_strategy",
        "ragged",
    ),
    "three": (
        "uneven_batch",
        "tiny_batch",
        "embedding_sparse",
    ),
}
SMALL_METRIC = 0.05
# How much the metric may differ, relative to that of one process, or to a small one.
STATISTICAL = {
    "batch_norm": 0.3,
    "dropout": 0.3,
    "vae": 0.3,
    "augment_layers": 0.3,
    "augment_map": 0.3,
    "k2_batch_norm": 0.3,
}
# The job of each of these fails with this text.
REFUSED = {
    "activity_regularizer": "a layer adds a loss within the call",
    "add_loss": "a layer adds a loss within the call",
    "batch_loss_output": "cannot run on several ranks",
    "break_on_one_rank": "is gone",
    "captured_tensor": "whose gradient would be lost",
    "captured_in_graph": "whose gradient would be lost",
    "codebook": "the variables that it assigns in the call",
    "counter_in_call": "the variables that it assigns in the call",
    "graph_network": "failed on this rank's slice of the batch",
    "jit_function": "XLA cannot compile",
    "label_noise": "compute different losses",
    "memory_bank": "no reduction would happen",
    "mixing_model": "depend on the other examples of the batch",
    "mixup_layer": "depend on the other examples of the batch",
    "process_seed": "with different batches",
    "shared_table": "looks up rows of one table for examples, and others",
    "stateful_rnn": "it has a stateful layer",
    "stored_tensor": "it keeps tensors of the call as attributes",
    "stored_in_graph": "it keeps tensors of the call as attributes",
    "table_in_function": "cannot tell whether one process would do so once",
    "table_twice": "Leave the block of the tape before you call its gradient()",
    "time_major": "depend on the other examples of the batch",
    "tiny_batch_norm": "normalizes a slice of one example",
    "two_threads": "call all models from one thread",
    "unseeded_rng": "with different batches",
    "module_loop": "no reduction would happen",
    "raw_variables": "no reduction would happen",
    "v1_drift": "Variables that differ:] [w:0]",
    "v1_drift_monitored": "Variables that differ:] [w:0 scale:0]",
    "v1_keras": "no reduction would happen",
    "v1_no_resources": "The variables are no resources",
    "v1_session": "no reduction would happen",
}


def ranks_of(job: str) -> int:
    """Return the number of ranks of a job of several scripts."""
    return 3 if job == "three" else 2


def scripts_of(job: str) -> tuple[str, ...]:
    """Return the scripts that run in a job."""
    return {**EQUAL, "statistical": tuple(STATISTICAL), "refused": tuple(REFUSED)}[job]


def equal() -> Iterator[tuple[str, str]]:
    """Return job and script of those that are equal."""
    yield from ((job, script) for job, scripts in EQUAL.items() for script in scripts)
