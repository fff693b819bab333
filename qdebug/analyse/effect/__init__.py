"""What each layer's error costs at the outputs, measured by leaving it out."""
