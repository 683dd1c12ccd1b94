# SPDX-License-Identifier: Apache-2.0
"""The parts of agpcs.torch.Job (agpcs/_torch_job.py)."""
