"""Experiments on finished runs that answer one question each. They run in processes of their own,
so that the command line stays free of torch.
"""
