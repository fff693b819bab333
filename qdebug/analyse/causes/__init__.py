"""What explains an error: measured parts of it, named, with the numbers and a remedy."""
