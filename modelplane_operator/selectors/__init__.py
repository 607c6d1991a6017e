"""The selector language behind `cel`: its grammar, types, values, functions, cost, and why a device does not match."""
