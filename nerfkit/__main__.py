# SPDX-License-Identifier: Apache-2.0
"""`python -m nerfkit COMMAND` is `nerfkit COMMAND`."""

from nerfkit.commands import main

if __name__ == "__main__":
    main()
