"""Commands of the checkout that are neither product nor tests."""
