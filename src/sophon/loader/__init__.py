"""At the trainer: asks for samples, finishes them, and hands out batches. The only room that imports torch."""
