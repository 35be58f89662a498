"""The life of a job, pure: no clock, file, socket, randomness or log line may be found in this package.

`job` holds the state, `table` the rules, `apply` folds events, `commands` and `holds` answer requests,
`order` plans phases, `settle` derives what follows, `effects` says what the world owes the job, `view`
shows it. A request becomes events; events become state; state becomes effects: the one way.
"""
