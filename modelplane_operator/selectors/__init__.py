"""The selector language of `cel`: grammar, types, values, functions, costs, and reasons why a device does not match."""
