"""The demo of `penstock demo`: a model learns the next frame of a film. Nothing else imports this package."""
