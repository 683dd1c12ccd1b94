# SPDX-License-Identifier: Apache-2.0
"""Teams in agpcs.torch.Job: members of a replica, what they exchange, and sums of gradients slice by slice."""
