"""The settings model and its one reader."""
