"""The admission webhook: reviews of objects on create and update, and answers to Questions."""
