"""The parts of DP-MAC: layers, their Taylor coefficients, auxiliary coordinates, and the objective that was released."""
