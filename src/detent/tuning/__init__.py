"""`detent tune`: a search for the settings that suit some tasks best.

space      what is searched
scoring    what is better
search     the search itself
asking     its use of Optuna
files      what it leaves in its directory
winner     what it ends with: a check on fresh seeds, flags, a preset
"""
