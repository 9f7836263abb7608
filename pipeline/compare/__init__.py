"""Two result sets side by side, in losses and times: `python -m pipeline compare A B`."""
