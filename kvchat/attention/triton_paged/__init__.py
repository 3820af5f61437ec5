"""Attention by Triton kernels over sealed blocks of any mix of formats and the hot window.

`table` says what they read and what they serve, and needs no Triton; `attend` launches them.
"""
