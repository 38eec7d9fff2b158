"""What a report about a run shows (`learning`, `usage`, `blocks`, `sentence`, `summary`) and how it is drawn
(`page`, `drawing`, `style`); tagged sentences and scores of taggers (`tagging`, `tag_tables`,
`tagging_picture`); words of a stream coloured by what two models make of them (`personal`);
transitions as an input varies (`effects`)."""
