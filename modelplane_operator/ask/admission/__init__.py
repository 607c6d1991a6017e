"""The admission webhook: reviews of objects as they are written, and answers to Questions."""
