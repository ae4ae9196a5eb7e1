"""Model Context Protocol: the queries and updates of applications as tools for language models.

door: the path `/mcp` and what answers there; tools: definitions, and who may use which; schemas: JSON Schema of their
arguments and results; answers: the beginning of an answer, as rows and as text; calls: their execution; resources:
texts that can be read. Imported only if `mcp.enabled` is set: the SDK takes 32 MB.
"""

from lamplighter.gateway.gates.mcp.door import ModelContext

__all__ = ["ModelContext"]
