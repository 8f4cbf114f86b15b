"""Commands of the checkout that are neither part of lbagent nor tests."""
