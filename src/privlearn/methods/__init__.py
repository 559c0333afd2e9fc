"""The methods: plain functions over the spine. They do not know each other."""
