"""Epilogues: what becomes of a tile's float32 sums before they are stored. One file for each of EPILOGUES in abi.py."""
