"""GPT-2 (Radford et al. 2019): model.py on one device, arithmetic.py without torch."""
