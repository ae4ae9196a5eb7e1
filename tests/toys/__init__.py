"""Small extensions, which tests/test_contributing.py adds to a copy of the project as CONTRIBUTING.md says."""
