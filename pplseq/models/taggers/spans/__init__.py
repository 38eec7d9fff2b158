"""Spans (chunks, entities) as tags: schemes such as B-, I-, O, what they forbid, and scores of whole spans."""
