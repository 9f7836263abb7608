"""Programs that train the same model: this one, a plain loop, and libraries; each a file."""
