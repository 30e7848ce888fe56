"""The trainer's side: requests samples, finishes them and delivers batches. Only this room and `bench` import torch."""
