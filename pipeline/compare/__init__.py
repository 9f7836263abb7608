"""Two result sets side by side: same losses? same times? `python -m pipeline compare A B`."""
