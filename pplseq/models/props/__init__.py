"""PROPS: streaming personalisation of black-box sequence models."""
