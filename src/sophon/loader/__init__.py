"""At the trainer: asks for samples, finishes them, and hands out batches. Only this room and `bench` import torch."""
