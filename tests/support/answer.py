"""What an honest node says when a data set is opened."""

ANSWER = {
    "dataset": "train",
    "samples": 1000,
    "fingerprint": "0123",
    "classes": ["cat", "dog"],
    "has_labels": True,
    "columns": ["id"],
    "cores": 2.5,
    "max_samples": 8192,
    "codecs": ["raw", "webp"],
    "versions": {"sophon": "1"},
    "max_cut": 3,
    "digests": ["a", "b", "c"],
    "reason": "",
    "protocols": [1, 2],
    "fields": [["image", "picture"]],
}
