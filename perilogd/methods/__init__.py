"""The methods of the protocol: each checks a request, and answers from the broker's state or changes it.

One module for each family of methods; `authority` says who may, `kinds` what arguments look like, `lookup`
finds jobs. What happens to a job is decided in `perilogd.lifecycle`, not here.
"""
