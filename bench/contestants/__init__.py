"""Programs that train the same model, held against this one."""
