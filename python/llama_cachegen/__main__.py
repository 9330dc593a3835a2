"""`python -m llama_cachegen`."""

from .cli import main

main()
