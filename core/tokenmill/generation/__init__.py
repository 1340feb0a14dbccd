"""From a prompt to text: the token loop, the choice of a token, and text in and out."""
