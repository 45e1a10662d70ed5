"""Staniel, a persistent queue server: the package that contains everything installed.

In the checkout the sub-packages are links to the folders at the top of the repository; the wheel has the folders
themselves. Programs import `staniel.client`; `staniel.pipeline` needs the extra `spark`.
"""

from staniel import compiled as compiled
