"""Calls → training samples, exactly: the prefix forest, its rows, and why a call could not continue.

Worked example: a call with prompt ``[1, 2]`` samples ``[3, 9]``; the next call's prompt is ``[1, 2, 3, 9, 5]`` and it
samples ``[7, 9]``. Its prompt starts with all of the first call's ids, so both become one sample
``[1, 2, 3, 9, 5, 7, 9]`` with mask ``[0, 0, 1, 1, 0, 1, 1]``. Had the prompt been ``[1, 2, 4, 9, 5]``, there would be
two samples and a break at index 2.
"""

from lightning_lab.samples.delivery import delivered_calls
from lightning_lab.samples.diagnosis import Decode, diagnose
from lightning_lab.samples.explanation import BreakCount, count_breaks, explain
from lightning_lab.samples.forest import CALL_KINDS, SampleSet, build_samples
from lightning_lab.samples.parents import MERGES
from lightning_lab.samples.rows import MaskReason, cut, trained_tokens

__all__ = [
    "CALL_KINDS",
    "MERGES",
    "BreakCount",
    "Decode",
    "MaskReason",
    "SampleSet",
    "build_samples",
    "count_breaks",
    "cut",
    "delivered_calls",
    "diagnose",
    "explain",
    "trained_tokens",
]
