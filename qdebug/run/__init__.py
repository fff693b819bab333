"""What runs models over samples, once, whoever asks."""
