-- The roles of people who use ledgers. The owner of the tables, or a superuser, runs this with psql
-- after the ledger was begun, and may run it again. Making roles needs CREATEROLE.
-- Then: GRANT privlearn_analyst TO ann; GRANT privlearn_auditor TO bert;

DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'privlearn_analyst') THEN
        CREATE ROLE privlearn_analyst NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'privlearn_auditor') THEN
        CREATE ROLE privlearn_auditor NOLOGIN;
    END IF;
END
$$;

REVOKE ALL ON ALL TABLES IN SCHEMA privlearn FROM PUBLIC, privlearn_analyst, privlearn_auditor;

-- Analysts charge runs. They can't begin data sets: another name would be another budget.
GRANT USAGE ON SCHEMA privlearn TO privlearn_analyst;
GRANT SELECT, INSERT ON privlearn.change TO privlearn_analyst;
GRANT SELECT ON privlearn.head, privlearn.data_key TO privlearn_analyst;

-- Auditors look at all that was charged. Without the key they cannot tell whose rows were used.
GRANT USAGE ON SCHEMA privlearn TO privlearn_auditor;
GRANT SELECT ON privlearn.change, privlearn.head TO privlearn_auditor;
