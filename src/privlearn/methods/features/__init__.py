"""Private feature selection and release (after Shen et al. 2021), and the Fisher classifier from released statistics."""
